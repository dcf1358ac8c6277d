"""What scripts/study_batch_size.py and scripts/study_synchrony.py share."""
