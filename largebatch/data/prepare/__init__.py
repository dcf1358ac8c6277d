"""ImageNet from its archives to a set that the sources read; docs/imagenet.md is its manual.

`members` says what a split consists of, `tars` and `folders` find it, `plan` decides order and
shards, `stored` what is kept of an image, `shards` writes, `workers` does so in parallel, `ledger`
remembers what is done, `dataset` adds what TFDS wants to read beside the shards; `run` and
`verify` are the two commands; `checksums` and `problems` serve both.
"""
