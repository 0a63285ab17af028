"""Tests of what several machines share."""
