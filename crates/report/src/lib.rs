//! Tables, charts and pages for Remat.
