"""What people and collectors of logs read while a command works."""
