"""Several daemons that share datasets: read them as one, publish to all of them."""
