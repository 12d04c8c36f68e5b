"""Other trainers' names for what brainlib has, so that scripts written for them run here (docs/porting.md)."""
