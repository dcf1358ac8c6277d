"""What a network makes of images, in detail: outcomes, calibration, confusions; trains nothing."""
