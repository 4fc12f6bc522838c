"""The benchmark of sparse training: its data, methods and training, and rows that are kept."""
