"""Sizes of the image classifiers of the zoo."""

IMAGE_SIZE = 32  # pixels; those of models that halve their images five times stay above 0
INCEPTION_SIZE = 75  # the smallest that Inception v3 takes
# Of images of 32 pixels, the last stage of ResNet-50 leaves one, and its BatchNorm amplifies rounding a million times.
RESNET50_SIZE = 64
PATCH_SIZE = 8
WIDTH, INNER_WIDTH, DEPTH, HEADS = 32, 64, 2, 4
