"""A first run on real photographs: ResNet-50 on Imagenette, ten classes of ImageNet, on one GPU.

    python train.py --config=configs/imagenette_resnet50.py --config.data.source=folder:PATH

PATH is the unpacked imagenette2 or imagenette2-320 of fast.ai (github.com/fastai/imagenette), with
train/ and val/ in class folders: 9,469 training and 3,925 validation images. A dataset prepared by
TFDS also works: --config.data.source=tfds:imagenette/320px-v2.
Expected: not measured to its end; 60 epochs of 36.98 steps, 568,140 images at 224×224, of which one
H100 trained 40 epochs to 84.66 % (records/2026-11-26_imagenette_h100/README.md).
Not a published run: plain SGD at a small batch, to check data, machine and trainer before a long
run.
"""

from ml_collections import ConfigDict

from largebatch.config import default_config


def get_config() -> ConfigDict:
    """A batch of 256 as 8 workers of 32 images."""
    config = default_config()
    config.model.name = "resnet50"
    config.model.dtype = "bfloat16"
    config.norm.last_gamma = 0.0
    config.batch.workers = 8
    config.batch.images_per_worker = 32
    config.data.source = "folder:imagenette2-320"
    config.data.image_size = 224
    config.data.crop_area = (0.25, 1.0)
    config.data.flip = True
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 5e-4
    config.loss.label_smoothing = 0.1
    config.schedule.length = "60 epochs"
    config.schedule.warmup = "5 epochs"
    config.schedule.decay = "cosine"
    config.schedule.per_256 = 0.2
    config.run.log_every = "10 steps"
    config.run.evaluate_every = "5 epochs"
    config.run.checkpoint_every = "5 epochs"
    return config
