"""Measuring: spectra and ranks of attention, of the residual stream and of the weights."""
