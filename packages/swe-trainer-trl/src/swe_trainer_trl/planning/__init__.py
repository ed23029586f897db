"""What a training needs, before anything is started: GPUs, memory, layout."""
