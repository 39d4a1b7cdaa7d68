"""Second derivatives, streamed, and minima found with them."""
