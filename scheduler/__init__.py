"""The scheduler: a pure core, the cloud models, and the live server around them."""
