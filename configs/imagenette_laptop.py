"""Ten classes of ImageNet on a laptop: ResNet-18 at 64 pixels for 90 epochs.

    python train.py --config=configs/imagenette_laptop.py --config.data.source=folder:PATH

PATH is the unpacked imagenette2-160 or imagenette2-320 of fast.ai (github.com/fastai/imagenette),
with train/ and val/ in class folders: 9,469 training and 3,925 validation images.
Expected: 82.6 % (three seeds: 82.2 to 83.3), in 16 minutes on two cores of an AMD EPYC, or 30 on
one, from a copy of the same images at 224×224 pixels (records/2026-11-23_imagenette_laptop_cpu/
README.md); larger JPEGs take longer.
Learning rate and weight decay were chosen by short trainings on nine tenths of the training images
(records/2026-11-23_learning_rates_imagenette_cpu.md).
Not a published run: SGD at a small batch, beside imagenette_record_ratio at a large one.
"""

from ml_collections import ConfigDict

from largebatch.config import default_config


def get_config() -> ConfigDict:
    """A batch of 64 as 4 workers of 16 images with common batch statistics."""
    config = default_config()
    config.model.name = "resnet18"
    config.model.width = 16
    config.norm.span = "all"
    config.batch.workers = 4
    config.batch.images_per_worker = 16
    config.data.source = "folder:imagenette2-320"
    config.data.image_size = 64
    config.data.crop_area = (0.25, 1.0)
    config.data.flip = True
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 5e-4
    config.loss.label_smoothing = 0.1
    config.schedule.length = "90 epochs"
    config.schedule.warmup = "5 epochs"
    config.schedule.decay = "cosine"
    config.schedule.peak = 0.1
    config.run.log_every = "1 epochs"
    config.run.evaluate_every = "5 epochs"
    config.run.checkpoint_every = "5 epochs"
    return config
