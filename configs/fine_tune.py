r"""Fine-tune a pretrained ResNet on your own class folders (docs/fine_tune.md).

    python train.py --config=configs/fine_tune.py --init_from=WEIGHTS \
        --config.data.source=folder:PATH --config.data.validation_split=0.2

WEIGHTS is a file of torchvision, timm or Hugging Face, or a run. PATH has a folder for each class;
with PATH/train and PATH/val, leave out the last option. All layers but the classifier train at a
tenth of the learning rate.
Expected: depends on images and weights; 10 epochs at 224×224, batch 64.
Not a published run: SGD with the usual hyperparameters of fine-tuning.
"""

from ml_collections import ConfigDict

from largebatch.config import default_config


def get_config() -> ConfigDict:
    """A batch of 64 as 4 workers of 16 images."""
    config = default_config()
    config.model.name = "resnet50"
    config.batch.workers = 4
    config.batch.images_per_worker = 16
    config.data.source = "folder:imagenette2-320"
    config.data.image_size = 224
    config.data.crop_area = (0.25, 1.0)
    config.data.flip = True
    config.data.resampling = "antialias"
    config.norm.span = "all"
    config.optimizer.name = "sgd"
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 1e-4
    config.optimizer.lr_mults = ("(?!head/).*: 0.1",)
    config.schedule.length = "10 epochs"
    config.schedule.warmup = "1 epochs"
    config.schedule.decay = "cosine"
    config.schedule.peak = 0.1
    config.run.evaluate_every = "1 epochs"
    config.run.checkpoint_every = "1 epochs"
    config.run.keep_best = True
    return config
