"""Code that scripts/evaluate.py and scripts/predict.py share."""
