"""One optimizer update: window, weights, gradients, guard, parameter groups."""
