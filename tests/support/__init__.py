"""What the tests stand on: real servers in processes of their own."""
