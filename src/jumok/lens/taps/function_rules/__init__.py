"""What ordinary functions do to scores and weights that are followed: one small rule for each."""
