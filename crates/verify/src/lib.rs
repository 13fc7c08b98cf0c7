//! The independent checker of Remat's plans.
