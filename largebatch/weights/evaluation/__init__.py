"""Evaluation of weights in detail: each image, each class, calibration and confusions."""
