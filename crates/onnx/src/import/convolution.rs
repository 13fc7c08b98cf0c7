//! Convolutions and poolings, on images that are held channels last.

use rekindle_program::Var;
use rekindle_program::op::{Axis, Between, ConvOptions, Pair, PoolOptions, Position};

use super::{Handler, Import};
use crate::OnnxError;
use crate::proto::NodeProto;
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] = &[
    ("Conv", conv),
    ("ConvTranspose", conv_transposed),
    ("MaxPool", max_pool),
    ("AveragePool", average_pool),
    ("GlobalAveragePool", global_average),
    ("GlobalMaxPool", global_max),
    ("Resize", resize),
];

/// A window as the file has it, for two axes.
struct Window {
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    /// At the top and left, and at the bottom and right.
    pads: [[usize; 2]; 2],
}

impl Import<'_> {
    /// An image `[n, c, h, w]`, or a sequence `[n, c, l]` as one of height one; and whether it was.
    fn image(&mut self, node: &NodeProto, index: usize) -> Result<(Seen, bool), OnnxError> {
        let seen = self.tensor(node, index)?;
        let last = self.channels_last(&seen)?;
        match *last.var.shape() {
            [_, _, _, _] => Ok((last, false)),
            [n, length, channels] => {
                let var = self.builder.reshape(&last.var, &[n, 1, length, channels])?;
                Ok((Seen { var, order: vec![0, 2, 3, 1], causal: false }, true))
            }
            _ => Err(node.wrong("an image of other than one or two dimensions")),
        }
    }

    /// The result `[n, h, w, c]` of an operator on images.
    fn image_value(&mut self, var: Var, flat: bool) -> Result<Vec<Value>, OnnxError> {
        let seen = match (flat, var.shape()) {
            (true, &[n, _, length, channels]) => {
                let var = self.builder.reshape(&var, &[n, length, channels])?;
                Seen { var, order: vec![0, 2, 1], causal: false }
            }
            _ => Seen { var, order: vec![0, 2, 3, 1], causal: false },
        };
        Ok(vec![Value::Tensor(seen)])
    }
}

/// Two numbers from as many or one of a sequence, which is of height one.
fn two(node: &NodeProto, name: &str, default: i64, flat: bool) -> Result<[usize; 2], OnnxError> {
    let given = node.ints(name);
    let numbers = match (given, flat) {
        (None, _) => [default; 2],
        (Some([x]), true) => [if name == "pads" { 0 } else { 1 }, *x],
        (Some([y, x]), false) => [*y, *x],
        (Some(other), _) => return Err(node.wrong(format!("`{name}` is {other:?}"))),
    };
    let [y, x] = numbers.map(usize::try_from);
    match (y, x) {
        (Ok(y), Ok(x)) if y < 1 << 20 && x < 1 << 20 => Ok([y, x]),
        _ => Err(node.wrong(format!("`{name}` is {numbers:?}"))),
    }
}

/// The window of a node over an image of this size.
fn window(
    node: &NodeProto,
    kernel: [usize; 2],
    size: [usize; 2],
    flat: bool,
) -> Result<Window, OnnxError> {
    let stride = two(node, "strides", 1, flat)?;
    let dilation = two(node, "dilations", 1, flat)?;
    if stride.contains(&0) || dilation.contains(&0) || kernel.contains(&0) {
        return Err(node.wrong("a kernel, stride or dilation of zero"));
    }
    let mut pads = [[0; 2]; 2];
    match node.text("auto_pad", "NOTSET") {
        "NOTSET" | "" => {
            let given = node.ints("pads").unwrap_or(&[]);
            let numbers = match (given, flat) {
                ([], _) => [0; 4],
                (&[left, right], true) => [0, left, 0, right],
                (&[top, left, bottom, right], false) => [top, left, bottom, right],
                (other, _) => return Err(node.wrong(format!("`pads` are {other:?}"))),
            };
            for (k, number) in numbers.into_iter().enumerate() {
                let pad = usize::try_from(number).ok().filter(|&pad| pad < 1 << 20);
                let wrong = || node.wrong(format!("`pads` are {given:?}"));
                pads[k / 2][k % 2] = pad.ok_or_else(wrong)?;
            }
        }
        "VALID" => {}
        same @ ("SAME_UPPER" | "SAME_LOWER") => {
            for axis in 0..2 {
                let reach = (kernel[axis] - 1) * dilation[axis] + 1;
                let out = size[axis].div_ceil(stride[axis]);
                let all = ((out - 1) * stride[axis] + reach).saturating_sub(size[axis]);
                let less = all / 2;
                let first = if same == "SAME_UPPER" { less } else { all - less };
                pads[0][axis] = first;
                pads[1][axis] = all - first;
            }
        }
        other => return Err(node.wrong(format!("`auto_pad` is {other}"))),
    }
    Ok(Window { kernel, stride, dilation, pads })
}

/// The image with more padding in front than behind cut off from the window: padded by itself.
fn padded_in_front(
    import: &mut Import<'_>,
    node: &NodeProto,
    x: &Var,
    window: &mut Window,
    fill: f32,
) -> Result<Var, OnnxError> {
    let [front, behind] = window.pads;
    let more = [0, 1].map(|axis| front[axis].saturating_sub(behind[axis]));
    if more == [0, 0] {
        return Ok(x.clone());
    }
    let &[n, height, width, channels] = x.shape() else {
        return Err(node.wrong("it is no image"));
    };
    window.pads[0] = [0, 1].map(|axis| front[axis] - more[axis]);
    let moved = |size: usize, more: usize| Axis::window(size, -(more as isize), size + more);
    let axes =
        [Axis::whole(n), moved(height, more[0]), moved(width, more[1]), Axis::whole(channels)];
    let name = import.name(node, "pad");
    Ok(import.builder.view(&name, x, &axes, fill)?)
}

fn sizes(var: &Var) -> [usize; 2] {
    match *var.shape() {
        [_, height, width, _] => [height, width],
        _ => [1, 1],
    }
}

fn conv(import: &mut Import<'_>, node: &NodeProto) -> Result<Vec<Value>, OnnxError> {
    let (x, flat) = import.image(node, 0)?;
    let weight = conv_weight(import, node, flat)?;
    let &[kh, kw, _, _] = weight.shape() else {
        return Err(node.wrong("a weight of other than two dimensions"));
    };
    let mut window = window(node, [kh, kw], sizes(&x.var), flat)?;
    let x = padded_in_front(import, node, &x.var, &mut window, 0.0)?;
    let bias = match import.optional(node, 2)? {
        Some(bias) => {
            let bias = import.floats(node, bias)?;
            Some(import.plain(&bias)?)
        }
        None => None,
    };
    let options = options(node, &window)?;
    let name = import.name(node, "");
    let y = import.builder.conv(&name, &x, &weight, bias.as_ref(), options)?;
    import.image_value(y, flat)
}

/// The weight of a convolution as `[kh, kw, in / groups, out]`.
fn conv_weight(import: &mut Import<'_>, node: &NodeProto, flat: bool) -> Result<Var, OnnxError> {
    let weight = import.tensor(node, 1)?;
    match (flat, weight.order.len()) {
        (false, 4) => import.in_order(&weight, &[2, 3, 1, 0]),
        (true, 3) => {
            let var = import.in_order(&weight, &[2, 1, 0])?;
            let &[k, inner, outer] = var.shape() else {
                return Err(node.wrong("a weight of three axes"));
            };
            Ok(import.builder.reshape(&var, &[1, k, inner, outer])?)
        }
        _ => Err(node.wrong("image and weight of different dimensions")),
    }
}

fn options(node: &NodeProto, window: &Window) -> Result<ConvOptions, OnnxError> {
    let groups = usize::try_from(node.int("group", 1));
    Ok(ConvOptions {
        stride: window.stride,
        padding: window.pads[0],
        extra: [0, 1].map(|axis| window.pads[1][axis] - window.pads[0][axis]),
        dilation: window.dilation,
        groups: groups.map_err(|_| node.wrong("a negative number of groups"))?,
    })
}

fn conv_transposed(import: &mut Import<'_>, node: &NodeProto) -> Result<Vec<Value>, OnnxError> {
    let (x, flat) = import.image(node, 0)?;
    let weight = conv_weight(import, node, flat)?;
    let &[kh, kw, _, _] = weight.shape() else {
        return Err(node.wrong("a weight of other than two dimensions"));
    };
    if node.attributes.contains_key("output_shape") {
        return Err(node.wrong("a given output shape; export with padding and output padding"));
    }
    let mut window = window(node, [kh, kw], [1, 1], flat)?;
    let more = two(node, "output_padding", 0, flat)?;
    let more = if flat { [0, more[1]] } else { more };
    let mut size = [0; 2];
    for (axis, size) in size.iter_mut().enumerate() {
        let reach = (window.kernel[axis] - 1) * window.dilation[axis] + 1;
        let full = (sizes(&x.var)[axis] - 1) * window.stride[axis] + reach + more[axis];
        let [front, behind] = [window.pads[0][axis], window.pads[1][axis]];
        // What is cut off behind beyond what is cut off in front would be negative padding.
        if behind < front {
            return Err(node.wrong("less padding behind than in front"));
        }
        *size = full.checked_sub(front + behind).filter(|&size| size > 0).unwrap_or(0);
        window.pads[1][axis] = behind;
    }
    let options = options(node, &window)?;
    let name = import.name(node, "");
    let y = import.builder.conv_transposed(&name, &x.var, &weight, size, options)?;
    let y = match import.optional(node, 2)? {
        Some(bias) => {
            let bias = import.floats(node, bias)?;
            let bias = import.plain(&bias)?;
            let name = import.name(node, "bias");
            import.builder.binary(&name, Pair::Add, &y, &bias)?
        }
        None => y,
    };
    import.image_value(y, flat)
}

/// The image and the window of a pooling, whose last windows may go beyond the padding.
fn pooling(
    import: &mut Import<'_>,
    node: &NodeProto,
    fill: f32,
) -> Result<(Var, PoolOptions, bool), OnnxError> {
    let (x, flat) = import.image(node, 0)?;
    let kernel = two(node, "kernel_shape", 1, flat)?;
    let mut window = window(node, kernel, sizes(&x.var), flat)?;
    if window.dilation != [1, 1] {
        return Err(node.wrong("a pooling with dilation"));
    }
    let x = padded_in_front(import, node, &x.var, &mut window, fill)?;
    let [front, behind] = window.pads;
    let mut extra = [0, 1].map(|axis| behind[axis] - front[axis]);
    if node.int("ceil_mode", 0) != 0 {
        for (axis, extra) in extra.iter_mut().enumerate() {
            let size = sizes(&x)[axis];
            let padded = size + front[axis] + behind[axis];
            let rest = padded.saturating_sub(kernel[axis]) % window.stride[axis];
            let windows = padded.saturating_sub(kernel[axis]) / window.stride[axis] + 1;
            // One more window, if it begins on the image or in the padding before it.
            if rest > 0 && windows * window.stride[axis] < size + front[axis] {
                *extra += window.stride[axis] - rest;
            }
        }
    }
    let options = PoolOptions { kernel, stride: window.stride, padding: front, extra };
    Ok((x, options, flat))
}

fn max_pool(import: &mut Import<'_>, node: &NodeProto) -> Result<Vec<Value>, OnnxError> {
    let (x, options, flat) = pooling(import, node, f32::NEG_INFINITY)?;
    let name = import.name(node, "");
    let y = import.builder.max_pool(&name, &x, options)?;
    import.image_value(y, flat)
}

/// The engine counts padding as zeros; where the file does not, each pixel is scaled by what was
/// counted too many.
fn average_pool(import: &mut Import<'_>, node: &NodeProto) -> Result<Vec<Value>, OnnxError> {
    let (x, options, flat) = pooling(import, node, 0.0)?;
    let name = import.name(node, "");
    let y = import.builder.avg_pool(&name, &x, options)?;
    let counted = node.int("count_include_pad", 0) != 0;
    if options.padding == [0, 0] && options.extra == [0, 0] {
        return import.image_value(y, flat);
    }
    let (from, to) = (sizes(&x), sizes(&y));
    let share = |axis: usize, at: usize| {
        let first = at * options.stride[axis];
        let last = first + options.kernel[axis];
        // Padding counts up to where the file's own ends, which is before the rounding up.
        let (low, high) = match counted {
            true => (0, from[axis] + 2 * options.padding[axis]),
            false => (options.padding[axis], from[axis] + options.padding[axis]),
        };
        let count = last.min(high).saturating_sub(first.max(low)).max(1);
        options.kernel[axis] as f32 / count as f32
    };
    let factors: Vec<f32> = (0..to[0])
        .flat_map(|y| (0..to[1]).map(move |x| (y, x)))
        .map(|(y, x)| share(0, y) * share(1, x))
        .collect();
    if factors.iter().all(|&factor| factor == 1.0) {
        return import.image_value(y, flat);
    }
    let name = import.name(node, "counted");
    let factors = import.builder.constant(&name, &[to[0], to[1], 1], factors)?;
    let name = import.name(node, "mean");
    let y = import.builder.binary(&name, Pair::Mul, &y, &factors)?;
    import.image_value(y, flat)
}

fn global_average(import: &mut Import<'_>, node: &NodeProto) -> Result<Vec<Value>, OnnxError> {
    let x = import.tensor(node, 0)?;
    let x = import.channels_last(&x)?;
    let axes: Vec<usize> = (1..x.order.len() - 1).collect();
    let name = import.name(node, "");
    let y = import.builder.mean(&name, &x.var, &axes)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

fn global_max(import: &mut Import<'_>, node: &NodeProto) -> Result<Vec<Value>, OnnxError> {
    let x = import.tensor(node, 0)?;
    let x = import.channels_last(&x)?;
    let axes: Vec<usize> = (1..x.order.len() - 1).collect();
    let name = import.name(node, "");
    let y = import.builder.max(&name, &x.var, &axes)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

fn resize(import: &mut Import<'_>, node: &NodeProto) -> Result<Vec<Value>, OnnxError> {
    let (x, flat) = import.image(node, 0)?;
    let shape = x.shape();
    let (scales, extents) = (import.constant(node, 2)?, import.constant(node, 3)?);
    let given = match (&scales, &extents) {
        (_, Some(extents)) if !extents.values.is_empty() => extents.values.clone(),
        (Some(scales), _) if !scales.values.is_empty() => {
            let own = if flat { vec![shape[0], shape[1], shape[3]] } else { shape.clone() };
            own.iter().zip(&scales.values).map(|(&n, s)| (n as f64 * s).floor()).collect()
        }
        _ => return Err(node.wrong("neither scales nor sizes")),
    };
    let to = match (&given[..], flat) {
        (&[_, _, length], true) => [1.0, length],
        (&[_, _, height, width], false) => [height, width],
        _ => return Err(node.wrong("sizes that are not those of an image")),
    };
    if to.iter().any(|&extent| !(1.0..1e6).contains(&extent)) || node.ints("axes").is_some() {
        return Err(node.wrong(format!("an image of {to:?}")));
    }
    let position = match node.text("coordinate_transformation_mode", "half_pixel") {
        "half_pixel" | "pytorch_half_pixel" => Position::HalfPixel,
        "asymmetric" => Position::Asymmetric,
        "align_corners" => Position::AlignCorners,
        other => return Err(node.wrong(format!("coordinates by `{other}`"))),
    };
    let between = match (node.text("mode", "nearest"), node.text("nearest_mode", "")) {
        ("nearest", "floor") => Between::Nearest,
        ("nearest", other) => return Err(node.wrong(format!("the nearest by `{other}`"))),
        ("linear", _) => Between::Linear,
        (other, _) => return Err(node.wrong(format!("the mode `{other}`"))),
    };
    let name = import.name(node, "");
    let to = to.map(|extent| extent as usize);
    let y = import.builder.resize(&name, &x.var, to, between, position)?;
    import.image_value(y, flat)
}
