"""Load on a server over HTTP: when requests are due, and who sends them."""
