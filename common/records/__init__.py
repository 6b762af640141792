"""Files of a run directory that other packages read: each has one reader, which checks what it reads."""
