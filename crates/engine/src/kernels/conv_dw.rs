//! The gradient of a convolution's weights.
//!
//! `dw[ky, kx, c, o] = Σ x[pixel under the tap, c] · dy[pixel, o]` over all pixels of `y`. A part
//! of the pixels (whole rows of the images) is packed at a time: `x` once for all taps, as panels
//! of [`TILE_ROWS`] channels over a padded grid, and `dy` as panels of [`TILE_COLS`] channels.
//! Under a tap, the pixels of a row of `y` are then equally spaced in the panel of `x`, so that
//! each row of the image is a segment of the register tile, and taps differ by an offset alone.
//!
//! Tasks are tiles of `dw`, so no sum is split among threads: the parts, and blocks of rows within
//! them, are added in order. Both follow from the shape alone.
//!
//! With a window of one pixel only the pixels that it meets are packed, whatever the stride. With
//! few channels (the first layer) a row of the window is packed as if it were one pixel.

use std::ops::Range;

use rekindle_program::op::{Conv, ConvDw};

use super::KernelError;
use super::conv::is_narrow;
use super::conv_depthwise::{depthwise_dw, depthwise_dw_scratch, is_depthwise};
use super::gemm_tile::{Left, Simd, TILE_COLS, TILE_ROWS, Tile};
use crate::dispatch::{Call, Kernel};
use crate::{SharedMut, Threads};

/// Pixels of a block, about: the panel of `dy` (16 KiB) stays in the first-level cache while the
/// panels of `x` and the taps pass by.
const BLOCK_PIXELS: usize = 256;
/// Floats that are packed at a time, at most (2 MiB), unless a single row of the image needs more.
const PACK: usize = 1 << 19;
/// Panels of `x` per task, at most: with a block's depth, 96 KiB of the second-level cache.
const TASK_PANELS: usize = 16;
/// Tasks below which the panels of `x` are shared out further.
const TASKS: usize = 16;

/// How the work is cut; for one group.
struct Cut {
    dims: Conv,
    /// Channels of a panel's pixel: the group's, or those of a window row.
    channels: usize,
    out_channels: usize,
    /// Vertical and horizontal taps.
    taps: [usize; 2],
    /// Vertical and horizontal distance of neighbouring taps.
    dilation: [usize; 2],
    /// Vertical and horizontal distance, in the packed grid, of neighbouring pixels of `y`.
    step: [usize; 2],
    /// Height and width of `y`.
    out: [usize; 2],
    /// Pixels of a packed row.
    width: usize,
    /// Rows of `y`, of all images.
    rows: usize,
    /// Rows of a part.
    part_rows: usize,
}

impl Cut {
    fn new(dims: &Conv) -> Cut {
        let window = &dims.window;
        let (ci, co) = (dims.in_channels / dims.groups, dims.out_channels / dims.groups);
        let [height, width] = window.kernel;
        let narrow = is_narrow(dims);
        let taps = [height, if narrow { 1 } else { width }];
        let step = [0, 1].map(|axis| if taps[axis] == 1 { 1 } else { window.stride[axis] });
        let out = [window.out_height(), window.out_width()];
        let rows = window.batch * out[0];
        let reach = |axis: usize| (taps[axis] - 1) * window.dilation[axis] + 1;
        let mut cut = Cut {
            dims: *dims,
            channels: if narrow { width * ci } else { ci },
            out_channels: co,
            taps,
            dilation: window.dilation,
            step,
            out,
            width: (out[1].max(1) - 1) * step[1] + reach(1),
            rows,
            part_rows: rows,
        };
        while cut.part_rows > 1 && cut.x_len() + cut.dy_len() > PACK {
            cut.part_rows = cut.part_rows.div_ceil(2);
        }
        cut
    }

    fn x_panels(&self) -> usize {
        self.channels.div_ceil(TILE_ROWS)
    }

    fn dy_panels(&self) -> usize {
        self.out_channels.div_ceil(TILE_COLS)
    }

    /// Packed rows of `x` for `rows` consecutive rows of `y` of one image.
    fn x_rows(&self, rows: usize) -> usize {
        (rows - 1) * self.step[0] + self.reach()
    }

    /// Packed rows from the first tap's to the last one's, both counted.
    fn reach(&self) -> usize {
        (self.taps[0] - 1) * self.dilation[0] + 1
    }

    /// Floats of the packed `x` of a part.
    fn x_len(&self) -> usize {
        // A part may begin and end within an image; each image in it needs its window's overlap.
        let images = (self.part_rows + self.out[0] - 2) / self.out[0] + 1;
        let overlap = self.reach().saturating_sub(self.step[0]);
        let rows = self.part_rows * self.step[0] + images * overlap;
        (self.x_panels() * rows * self.width * TILE_ROWS).next_multiple_of(16)
    }

    /// Floats of the packed `dy` of a part.
    fn dy_len(&self) -> usize {
        self.dy_panels() * self.part_rows * self.out[1] * TILE_COLS
    }

    fn is_empty(&self) -> bool {
        self.rows * self.out[1] * self.channels * self.out_channels == 0
    }
}

impl Kernel for ConvDw {
    fn scratch(&self, _: usize) -> usize {
        if is_depthwise(&self.0) {
            return depthwise_dw_scratch(&self.0);
        }
        let cut = Cut::new(&self.0);
        if cut.is_empty() { 0 } else { cut.x_len() + cut.dy_len() }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (x, dy) = (call.read(0), call.read(1));
        let (dw, scratch) = (call.write(0), call.scratch());
        conv_dw(Simd::detect(), &self.0, x, dy, dw, scratch, call.threads);
        Ok(())
    }
}

/// The gradient of `w`.
pub(super) fn conv_dw(
    simd: Simd,
    dims: &Conv,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    scratch: &mut [f32],
    threads: &Threads,
) {
    if is_depthwise(dims) {
        return depthwise_dw(dims, x, dy, dw, scratch, threads);
    }
    let cut = Cut::new(dims);
    if cut.is_empty() {
        return dw.fill(0.0);
    }
    let (packed_x, packed_dy) = scratch.split_at_mut(cut.x_len());
    let dw = SharedMut::new(dw);
    for group in 0..dims.groups {
        for first in (0..cut.rows).step_by(cut.part_rows) {
            let rows = first..(first + cut.part_rows).min(cut.rows);
            let part = Part { cut: &cut, group, rows };
            part.pack(x, dy, packed_x, packed_dy, threads);
            part.compute(simd, packed_x, packed_dy, &dw, threads);
        }
    }
}

/// Some consecutive rows of `y`, and the part of `x` that they meet.
struct Part<'a> {
    cut: &'a Cut,
    group: usize,
    rows: Range<usize>,
}

impl Part<'_> {
    /// Packed rows of `x` for the first image of the part.
    fn first_image_rows(&self) -> usize {
        let height = self.cut.out[0];
        let rest = height - self.rows.start % height;
        self.cut.x_rows(rest.min(self.rows.len()))
    }

    /// The packed row of `x` that row `row` of `y` meets at its first tap.
    fn packed_row(&self, row: usize) -> usize {
        let height = self.cut.out[0];
        match row / height - self.rows.start / height {
            0 => (row - self.rows.start) * self.cut.step[0],
            images => {
                let full = (images - 1) * self.cut.x_rows(height);
                self.first_image_rows() + full + row % height * self.cut.step[0]
            }
        }
    }

    /// Packed rows of `x`.
    fn x_rows(&self) -> usize {
        self.packed_row(self.rows.end - 1) + self.cut.reach()
    }

    /// The image, and the row of `x` within it, that a packed row holds; outside the image if
    /// padding.
    fn source_row(&self, packed: usize) -> (usize, usize) {
        let (cut, window) = (self.cut, &self.cut.dims.window);
        let height = cut.out[0];
        let (image, first, row) = match packed.checked_sub(self.first_image_rows()) {
            None => (0, self.rows.start % height, packed),
            Some(later) => {
                let rows = cut.x_rows(height);
                (1 + later / rows, 0, later % rows)
            }
        };
        let padded = match cut.taps[0] {
            1 => (first + row) * window.stride[0],
            _ => first * window.stride[0] + row,
        };
        // A row of the upper padding wraps around and is outside, too.
        (self.rows.start / height + image, padded.wrapping_sub(window.padding[0]))
    }

    /// Packs the part of `x` as `[panel][row][pixel][TILE_ROWS]`, of `dy` as
    /// `[panel][pixel][TILE_COLS]`.
    fn pack(
        &self,
        x: &[f32],
        dy: &[f32],
        packed_x: &mut [f32],
        packed_dy: &mut [f32],
        threads: &Threads,
    ) {
        let x_rows = self.x_rows();
        let packed_x = SharedMut::new(packed_x);
        let packed_dy = SharedMut::new(packed_dy);
        threads.run(x_rows + self.rows.len(), &|_, task| {
            let Some(row) = task.checked_sub(x_rows) else {
                return self.pack_x_row(x, task, &packed_x);
            };
            self.pack_dy_row(dy, row, &packed_dy);
        });
    }

    /// Packs one row of `dy`, in all panels. Pixel by pixel, because that is how they lie in
    /// memory.
    fn pack_dy_row(&self, dy: &[f32], row: usize, panels: &SharedMut<f32>) {
        let cut = self.cut;
        let (width, pitch) = (cut.out[1], cut.dims.out_channels);
        for x in 0..width {
            let pixel = (self.rows.start + row) * width + x;
            let data = &dy[pixel * pitch + self.group * cut.out_channels..][..cut.out_channels];
            for (panel, data) in data.chunks(TILE_COLS).enumerate() {
                let start = ((panel * self.rows.len() + row) * width + x) * TILE_COLS;
                // SAFETY: each task packs a row of its own.
                let out = unsafe { panels.slice(start..start + TILE_COLS) };
                if let Ok(data) = <&[f32; TILE_COLS]>::try_from(data) {
                    out.copy_from_slice(data);
                } else {
                    out[..data.len()].copy_from_slice(data);
                    out[data.len()..].fill(0.0);
                }
            }
        }
    }

    /// Packs one row of the padded grid of `x`, in all panels.
    fn pack_x_row(&self, x: &[f32], packed: usize, panels: &SharedMut<f32>) {
        let (cut, window) = (self.cut, &self.cut.dims.window);
        let (image, source) = self.source_row(packed);
        let inside = source < window.height;
        let pitch = cut.dims.in_channels;
        let row = if inside { (image * window.height + source) * window.width * pitch } else { 0 };
        let row = if inside { &x[row..row + window.width * pitch] } else { &[] };
        for panel in 0..cut.x_panels() {
            let channel = panel * TILE_ROWS;
            let count = TILE_ROWS.min(cut.channels - channel);
            let len = cut.width * TILE_ROWS;
            let start = (panel * self.x_rows() + packed) * len;
            // SAFETY: each task packs a row of its own.
            let out = unsafe { panels.slice(start..start + len) };
            if !inside {
                out.fill(0.0);
            } else if is_narrow(&cut.dims) {
                self.pack_window_rows(row, channel, count, out);
            } else {
                self.pack_pixels(row, self.group * cut.channels + channel, count, out);
            }
        }
    }

    /// Packs `count` channels from `channel` of each pixel of an image row, and zeros around it.
    fn pack_pixels(&self, row: &[f32], channel: usize, count: usize, out: &mut [f32]) {
        let (cut, window) = (self.cut, &self.cut.dims.window);
        let stride = if cut.taps[1] == 1 { window.stride[1] } else { 1 };
        let padding = window.padding[1];
        // The pixels that lie within the image.
        let first = padding.div_ceil(stride).min(cut.width);
        let last = (window.width + padding).div_ceil(stride).clamp(first, cut.width);
        out[..first * TILE_ROWS].fill(0.0);
        out[last * TILE_ROWS..].fill(0.0);
        let out = out[first * TILE_ROWS..last * TILE_ROWS].chunks_exact_mut(TILE_ROWS);
        let pitch = stride * cut.dims.in_channels;
        let from = (first * stride - padding.min(first * stride)) * cut.dims.in_channels + channel;
        for (i, out) in out.enumerate() {
            let values = &row[from + i * pitch..][..count];
            match <&[f32; TILE_ROWS]>::try_from(values) {
                Ok(values) => out.copy_from_slice(values),
                Err(_) => out[..count].copy_from_slice(values),
            }
        }
    }

    /// Packs `count` floats from `channel` of the window row at each pixel of `y`.
    fn pack_window_rows(&self, row: &[f32], channel: usize, count: usize, out: &mut [f32]) {
        let (cut, window) = (self.cut, &self.cut.dims.window);
        let channels = cut.dims.in_channels;
        let padding = window.padding[1] * channels;
        for (pixel, out) in out.chunks_exact_mut(TILE_ROWS).enumerate() {
            let start = pixel * window.stride[1] * channels + channel;
            for (i, out) in out[..count].iter_mut().enumerate() {
                // A float of the left padding wraps around and is outside, too.
                *out = row.get((start + i).wrapping_sub(padding)).copied().unwrap_or(0.0);
            }
        }
    }

    /// Adds the part's sums to `dw`, or sets it if the part is the first.
    fn compute(
        &self,
        simd: Simd,
        packed_x: &[f32],
        packed_dy: &[f32],
        dw: &SharedMut<f32>,
        threads: &Threads,
    ) {
        let (x_panels, dy_panels) = (self.cut.x_panels(), self.cut.dy_panels());
        let groups = x_panels.div_ceil(TASK_PANELS).max(TASKS.div_ceil(dy_panels)).min(x_panels);
        let share = x_panels.div_ceil(groups);
        let groups = x_panels.div_ceil(share);
        threads.run(groups * dy_panels, &|_, task| {
            let first = task % groups * share;
            let panels = first..(first + share).min(x_panels);
            self.compute_panels(simd, packed_x, packed_dy, panels, task / groups, dw);
        });
    }

    /// The same for some panels of `x` and one of `dy`.
    fn compute_panels(
        &self,
        simd: Simd,
        packed_x: &[f32],
        packed_dy: &[f32],
        x_panels: Range<usize>,
        dy_panel: usize,
        dw: &SharedMut<f32>,
    ) {
        let cut = self.cut;
        let width = cut.out[1];
        let x_len = self.x_rows() * cut.width * TILE_ROWS;
        let dy_start = dy_panel * self.rows.len() * width * TILE_COLS;
        let col = dy_panel * TILE_COLS;
        let cols = TILE_COLS.min(cut.out_channels - col);
        let most = (BLOCK_PIXELS / width).max(1);
        let block_rows = self.rows.len().div_ceil(self.rows.len().div_ceil(most));
        for first in self.rows.clone().step_by(block_rows) {
            let rows = first..(first + block_rows).min(self.rows.end);
            let mut offsets = [0; BLOCK_PIXELS];
            for (offset, row) in offsets.iter_mut().zip(rows.clone()) {
                *offset = self.packed_row(row) * cut.width * TILE_ROWS;
            }
            let right = dy_start + (first - self.rows.start) * width * TILE_COLS;
            let right = &packed_dy[right..right + rows.len() * width * TILE_COLS];
            // Without a window, all pixels of the block are neighbours.
            let (segments, depth) = match cut.taps {
                [1, 1] => (1, rows.len() * width),
                _ => (rows.len(), width),
            };
            for panel in x_panels.clone() {
                let packed = &packed_x[panel * x_len..(panel + 1) * x_len];
                let channel = panel * TILE_ROWS;
                let count = TILE_ROWS.min(cut.channels - channel);
                for tap in 0..cut.taps[0] * cut.taps[1] {
                    let y = tap / cut.taps[1] * cut.dilation[0];
                    let x = tap % cut.taps[1] * cut.dilation[1];
                    let mut result = [std::ptr::null_mut(); TILE_ROWS];
                    for (i, start) in result[..count].iter_mut().enumerate() {
                        let row = (tap * cut.channels + channel + i) * cut.dims.out_channels;
                        let at = row + self.group * cut.out_channels + col;
                        // SAFETY: each task writes to a tile of its own.
                        *start = unsafe { dw.slice(at..at + cols) }.as_mut_ptr();
                    }
                    let tile = Tile {
                        left: Left::Columns {
                            base: packed[(y * cut.width + x) * TILE_ROWS..].as_ptr(),
                            offsets: offsets.as_ptr(),
                            step: cut.step[1] * TILE_ROWS,
                        },
                        right: right.as_ptr(),
                        segments,
                        depth,
                        result,
                        rows: count,
                        cols,
                        alpha: 1.0,
                        bias: std::ptr::null(),
                        add: first > 0,
                    };
                    // SAFETY: the last pixel under the last tap is the last of the panel; the rows
                    // of `right` are the block's; the result is this task's own.
                    unsafe { tile.run(simd) };
                }
            }
        }
    }
}
