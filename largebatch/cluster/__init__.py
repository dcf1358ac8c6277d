"""Models of clusters that are not here: network, schedule and step time. Runs no training."""
