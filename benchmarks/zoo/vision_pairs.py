"""Pairs of models that classify images or their pixels."""

from benchmarks.zoo.pairs import ZooPair
from benchmarks.zoo.vision_sizes import IMAGE_SIZE, INCEPTION_SIZE, RESNET50_SIZE

HERE = "benchmarks.zoo"
OTHER_SIZES = {"inception_v3": INCEPTION_SIZE, "resnet50_kerashub": RESNET50_SIZE}
TORCHVISION_NAMES = {  # the pairs of torchvision, and the models of keras.applications
    "vgg16": "VGG16",
    "vgg19": "VGG19",
    "densenet121": "DenseNet121",
    "resnet50_torchvision": "ResNet50",
    "mobilenet_v2_torchvision": "MobileNetV2",
    "mobilenet_v3_small": "MobileNetV3Small",
    "efficientnet_b0_torchvision": "EfficientNetB0",
    "efficientnet_v2_s": "EfficientNetV2S",
    "convnext_tiny_torchvision": "ConvNeXtTiny",
    "inception_v3": "InceptionV3",
}


def _describe_images(size: int) -> dict[str, str]:
    return {"images": f"float32[4,{size},{size},channels=3]"}


def _build_pair(name: str, torch_source: str, keras_source: str, torch_module: str = "vision_torch") -> ZooPair:
    """Return the pair of the factories of one name, which ends with an underscore and the library if it has two."""
    factory = name.removesuffix("_torchvision")
    return ZooPair(
        name=name,
        torch=f"{HERE}.{torch_module}:{factory}",
        keras=f"{HERE}.vision_keras:{factory}",
        inputs=_describe_images(OTHER_SIZES.get(name, IMAGE_SIZE)),
        torch_source=torch_source,
        keras_source=keras_source,
    )


def _build_unet_pair(name: str) -> ZooPair:
    """Return a pair of U-Nets, which no library of both frameworks has."""
    source = "U-Net of the zoo"
    return ZooPair(
        name=name,
        torch=f"{HERE}.unet_torch:{name}",
        keras=f"{HERE}.unet_keras:{name}",
        inputs=_describe_images(IMAGE_SIZE),
        torch_source=source,
        keras_source=source,
        label_shape=(IMAGE_SIZE, IMAGE_SIZE),
    )


VISION_PAIRS = (
    _build_unet_pair("unet_transposed"),
    _build_unet_pair("unet_bilinear"),
    _build_pair("resnet_basic", "transformers ResNetModel", "KerasHub ResNetBackbone"),
    _build_pair("resnet_bottleneck", "transformers ResNetModel", "KerasHub ResNetBackbone"),
    _build_pair("resnet50_kerashub", "transformers ResNetModel, ResNet-50", "KerasHub ResNetBackbone, ResNet-50"),
    _build_pair("resnet50", "transformers ResNetForImageClassification", "keras.applications ResNet50"),
    _build_pair("mobilenet_v1", "transformers MobileNetV1ForImageClassification", "keras.applications MobileNet"),
    _build_pair("mobilenet_v2", "transformers MobileNetV2ForImageClassification", "keras.applications MobileNetV2"),
    _build_pair(
        "efficientnet_b0", "transformers EfficientNetForImageClassification", "keras.applications EfficientNetB0"
    ),
    _build_pair("convnext_tiny", "transformers ConvNextForImageClassification", "keras.applications ConvNeXtTiny"),
    _build_pair(
        "efficientnet_b1", "transformers EfficientNetForImageClassification", "keras.applications EfficientNetB1"
    ),
    _build_pair("convnext_small", "transformers ConvNextForImageClassification", "keras.applications ConvNeXtSmall"),
    _build_pair("metaclip2", "transformers MetaClip2VisionModel", "KerasHub MetaCLIP2VisionEncoder"),
    _build_pair("vit", "transformers ViTModel", "KerasHub ViTBackbone"),
    _build_pair("deit", "transformers DeiTModel", "KerasHub DeiTBackbone"),
    _build_pair("dinov2", "transformers Dinov2Model", "KerasHub DINOV2Backbone"),
    _build_pair("dinov2_with_registers", "transformers Dinov2WithRegistersModel", "KerasHub DINOV2Backbone"),
    _build_pair("dinov3", "transformers DINOv3ViTModel", "KerasHub DINOV3Backbone"),
    _build_pair("clip", "transformers CLIPVisionModel", "KerasHub CLIPVisionEncoder"),
    _build_pair("siglip", "transformers SiglipVisionModel", "KerasHub SigLIPVisionEncoder"),
    _build_pair("swin", "transformers SwinModel", "KerasHub SwinTransformerBackbone"),
    _build_pair("segformer", "transformers SegformerModel", "KerasHub MiTBackbone"),
    _build_pair("hgnet", "transformers HGNetV2Backbone", "KerasHub HGNetV2Backbone"),
    *(
        _build_pair(
            name,
            f"torchvision {name.removesuffix('_torchvision')}",
            f"keras.applications {keras_name}",
            "vision_torchvision",
        )
        for name, keras_name in TORCHVISION_NAMES.items()
    ),
)
