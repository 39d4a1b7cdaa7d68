"""Second derivatives, streamed, and minima and saddles found with them."""
