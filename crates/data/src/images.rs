//! A folder of images by class: each folder in it is a class, named by its name, and holds PNG and
//! JPEG files.
//!
//! An image becomes numbers so: decoded to 8 bits a channel; resized, so that its shorter side is
//! as asked (a triangle filter, which averages when it shrinks); cropped to the model's size in the
//! middle, or at random; perhaps mirrored; divided by 255, less the mean and over the deviation of
//! its channel. What is random is a function of the seed, the epoch and the sample.
//!
//! Limits: transparency is dropped, and a camera's note of how it was held is not heeded.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageReader, Limits};
use rekindle_graph::open_file;
use rekindle_program::random::Stream;

use crate::sample::{FeaturesMut, SampleMut, Samples};
use crate::{DataError, ImageOptions};

/// The images of a folder.
pub(crate) struct Images {
    folder: PathBuf,
    /// Sorted; the place of a name is its class.
    pub(crate) classes: Vec<String>,
    /// Class and name of each file, sorted.
    files: Vec<(u32, Box<str>)>,
    pixels: Pixels,
}

/// How an image becomes numbers.
pub(crate) struct Pixels {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) channels_first: bool,
    pub(crate) options: ImageOptions,
    /// What decoding may take.
    pub(crate) memory: u64,
}

impl Images {
    /// Lists the folder; no file is opened yet.
    pub(crate) fn open(folder: &Path, pixels: Pixels) -> Result<Images, DataError> {
        let nothing = |why: &str| DataError::Nothing { path: folder.to_owned(), why: why.into() };
        let classes = names(folder, |entry| entry.is_dir())?;
        if classes.is_empty() {
            return Err(nothing("it has no folders; give each class a folder of images"));
        }
        let mut files = Vec::new();
        for (class, name) in (0..).zip(&classes) {
            let here = names(&folder.join(name), is_image)?;
            files.extend(here.into_iter().map(|file| (class, file.into_boxed_str())));
        }
        if files.is_empty() {
            return Err(nothing("its folders have no .png, .jpg or .jpeg file"));
        }
        Ok(Images { folder: folder.to_owned(), classes, files, pixels })
    }
}

/// The names of what is in a folder, sorted.
fn names(folder: &Path, is_wanted: impl Fn(&Path) -> bool) -> Result<Vec<String>, DataError> {
    let fail = |source| DataError::Read { path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if is_wanted(&entry.path()) {
            let name = entry.file_name().into_string().map_err(|name| DataError::BadFile {
                path: folder.join(name),
                why: "its name is no Unicode text".into(),
            })?;
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    ["png", "jpg", "jpeg"].contains(&ending.to_ascii_lowercase().as_str())
}

impl Samples for Images {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn read(
        &self,
        index: usize,
        draw: Option<Stream>,
        SampleMut { features, labels, .. }: SampleMut<'_>,
    ) -> Result<(), DataError> {
        let (class, name) = &self.files[index];
        let path = self.folder.join(&self.classes[*class as usize]).join(&**name);
        let FeaturesMut::Numbers(into) = features else { unreachable!("images are numbers") };
        let numbers = self.pixels.decode(&path).and_then(|image| self.pixels.numbers(image, draw));
        let numbers = numbers.map_err(|why| DataError::BadFile { path, why })?;
        self.pixels.write(&numbers, into);
        labels[0] = i64::from(*class);
        Ok(())
    }
}

impl Pixels {
    fn decode(&self, path: &Path) -> Result<DynamicImage, String> {
        let file = open_file(path).map_err(|error| error.to_string())?;
        let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
        let mut reader = reader.map_err(|error| error.to_string())?;
        let mut limits = Limits::default();
        limits.max_alloc = Some(self.memory);
        reader.limits(limits);
        reader.decode().map_err(|error| error.to_string())
    }

    /// The bytes of the part of the image that the model sees, row by row.
    fn numbers(&self, image: DynamicImage, draw: Option<Stream>) -> Result<Vec<u8>, String> {
        let bytes = match self.channels {
            1 => {
                let image = image.into_luma8();
                let part = self.place(image.dimensions(), draw)?;
                let image = match part.resized {
                    Some([w, h]) => imageops::resize(&image, w, h, FilterType::Triangle),
                    None => image,
                };
                let [width, height] = self.size();
                imageops::crop_imm(&image, part.x, part.y, width, height).to_image().into_raw()
            }
            _ => {
                let image = image.into_rgb8();
                let part = self.place(image.dimensions(), draw)?;
                let image = match part.resized {
                    Some([w, h]) => imageops::resize(&image, w, h, FilterType::Triangle),
                    None => image,
                };
                let [width, height] = self.size();
                imageops::crop_imm(&image, part.x, part.y, width, height).to_image().into_raw()
            }
        };
        let mirrored = self.options.flip && draw.is_some_and(|draw| draw.unit(2) < 0.5);
        Ok(if mirrored { self.mirrored(&bytes) } else { bytes })
    }

    fn size(&self) -> [u32; 2] {
        [self.width as u32, self.height as u32]
    }

    /// To which size an image is resized, and where it is cropped.
    fn place(&self, (width, height): (u32, u32), draw: Option<Stream>) -> Result<Part, String> {
        let [wanted_width, wanted_height] = self.size();
        let side = self.options.resize.map_or(0, |side| side as u32);
        let side = side.max(wanted_width.min(wanted_height));
        if width == 0 || height == 0 {
            return Err("it has no pixels".into());
        }
        let shorter = f64::from(width.min(height));
        let long = |axis: u32| (f64::from(axis) * f64::from(side) / shorter).round() as u32;
        let to = [long(width).max(wanted_width), long(height).max(wanted_height)];
        let bytes = u64::from(to[0]) * u64::from(to[1]) * self.channels as u64;
        if bytes > self.memory {
            return Err(format!("its {width} × {height} pixels are too long a strip to resize"));
        }
        let room = [to[0] - wanted_width, to[1] - wanted_height];
        let at = |axis: usize| match draw.filter(|_| self.options.random_crop) {
            Some(draw) => (draw.unit(axis as u64) * f64::from(room[axis] + 1)) as u32,
            None => room[axis] / 2,
        };
        let resized = (to != [width, height]).then_some(to);
        Ok(Part { resized, x: at(0).min(room[0]), y: at(1).min(room[1]) })
    }

    fn mirrored(&self, bytes: &[u8]) -> Vec<u8> {
        let mut mirrored = Vec::with_capacity(bytes.len());
        for row in bytes.chunks_exact(self.width * self.channels) {
            let pixels = row.chunks_exact(self.channels).rev();
            pixels.for_each(|pixel| mirrored.extend_from_slice(pixel));
        }
        mirrored
    }

    /// Normalises the bytes, in the order of the model.
    fn write(&self, bytes: &[u8], into: &mut [f32]) {
        let pixels = self.height * self.width;
        for (index, &byte) in bytes.iter().enumerate() {
            let (pixel, channel) = (index / self.channels, index % self.channels);
            let to = match self.channels_first {
                true => channel * pixels + pixel,
                false => index,
            };
            let (mean, deviation) = self.options.normal(channel);
            into[to] = (f32::from(byte) / 255.0 - mean) / deviation;
        }
    }
}

/// Which part of which size of an image is taken.
struct Part {
    /// Width and height, if they are other than the image's.
    resized: Option<[u32; 2]>,
    x: u32,
    y: u32,
}
