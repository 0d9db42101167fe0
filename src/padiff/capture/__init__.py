"""Running a model and seeing what happens inside, without changing it."""
