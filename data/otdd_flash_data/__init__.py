"""Real samples of MNIST and Fashion-MNIST; `otdd_flash.datasets` loads and checks them."""
