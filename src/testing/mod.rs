//! Masters that live in this process: for your own tests, for the demo and for the simulation.
