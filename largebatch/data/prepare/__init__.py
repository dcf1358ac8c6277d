"""Preparation of ImageNet, or of any class folders, for training; docs/imagenet.md is the manual.

`archives` and `tar_index` index the input, `plan` decides order and shards, `shards` writes one
shard, `run` and `verify` are the two commands for ImageNet, `class_folders` is the command for
other images.
"""
