//! What can be wrong with a program that somebody writes with the builder.

use crate::DType;

/// Why the builder refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProgramError {
    /// An operand does not have the shape that the op needs.
    #[error(
        "`{node}`: operand `{operand}` has shape {found:?}, but must be {expected}; \
         pass a tensor of that shape (a reshape costs nothing)"
    )]
    Shape {
        /// The node that was to be made.
        node: String,
        /// Which operand.
        operand: &'static str,
        /// The shape that it must have, in words or numbers.
        expected: String,
        /// The shape that it has.
        found: Vec<usize>,
    },
    /// An operand does not have the element type that the op needs.
    #[error(
        "`{node}`: operand `{operand}` holds {found:?}, but must hold {expected:?}; \
         ids and labels are I64, everything that is computed with is F32"
    )]
    Type {
        /// The node that was to be made.
        node: String,
        /// Which operand.
        operand: &'static str,
        /// The type that it must have.
        expected: DType,
        /// The type that it has.
        found: DType,
    },
    /// A window does not fit into the padded image.
    #[error(
        "`{node}`: a window of {kernel:?} does not fit into an image of {image:?} padded by \
         {padding:?}; use a larger image, a smaller window or more padding"
    )]
    Window {
        /// The node that was to be made.
        node: String,
        /// Height and width of the window.
        kernel: [usize; 2],
        /// Height and width of the image.
        image: [usize; 2],
        /// Padding on each side.
        padding: [usize; 2],
    },
    /// An argument is outside its range.
    #[error("`{node}`: {what} is {found}, but must be {expected}")]
    Argument {
        /// The node that was to be made.
        node: String,
        /// Which argument.
        what: &'static str,
        /// What it may be, in words.
        expected: String,
        /// Its value.
        found: String,
    },
    /// A tensor would have no element.
    #[error(
        "`{name}` would have shape {shape:?}, which has no element; make every extent positive"
    )]
    Empty {
        /// The tensor that was to be made.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A tensor would be larger than any machine can hold.
    #[error(
        "`{name}` would have shape {shape:?}, more than {limit} bytes; \
         reduce the batch, the image or the sequence"
    )]
    TooLarge {
        /// The tensor that was to be made.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The largest size that the builder accepts.
        limit: u64,
    },
    /// Two nodes would have the same name.
    #[error("there is already a node `{name}`; names are unique: choose another, or open a scope")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// An operand is a handle that another builder gave out.
    #[error("`{node}`: operand `{operand}` comes from another builder; build it with this one")]
    Foreign {
        /// The node that was to be made.
        node: String,
        /// Which operand.
        operand: &'static str,
    },
    /// The backward pass would compute nothing.
    #[error(
        "`{name}` does not depend on any parameter, so there is no gradient to compute; \
         differentiate something that does"
    )]
    NoParameter {
        /// What was to be differentiated.
        name: String,
    },
}
