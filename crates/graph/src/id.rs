//! Indices as types: a node, a storage and a step cannot be mistaken for each other.

macro_rules! define_index {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The id of position `index`.
            ///
            /// # Panics
            /// If `index` does not fit in 32 bits; a checked graph never holds that many.
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("more than 2^32 ids"))
            }

            /// The position in an id-indexed vector.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

define_index!(
    /// A node of a graph: its position in the graph's own order.
    NodeId, "n"
);
define_index!(
    /// A storage of a graph.
    StorageId, "s"
);
define_index!(
    /// A position in a schedule.
    StepId, "step "
);
