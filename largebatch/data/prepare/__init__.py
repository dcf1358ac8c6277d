"""Preparation: any labelled images become ArrayRecord shards with TFDS's metadata, once.

The manual is docs/imagenet.md. An input becomes an `inputs.Input`, splits of parts that can be read
in any process: `image_files` finds the images of tars and folders, `datasets` those of other
datasets. `run.prepare` writes each part as a shard (`records`), and `run.verify` checks the result.
"""
