"""The checks that people do by hand: shapes and contents, dead layers, one batch learned by heart, a learning rate."""
