//! Models written with the builder of Remat.
