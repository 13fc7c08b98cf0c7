//! The wire format of protocol buffers: fields of a message, one after the other.
//!
//! In: bytes. Out: fields with their numbers, and where each lies in the file. Nothing is copied
//! and nothing is allocated, so a damaged length cannot ask for memory. Positions are what a
//! general decoder does not give: by them weights are read when they are needed, and an exported
//! file is the imported one with other bytes at the same places.

use std::ops::Range;

use crate::OnnxError;

/// A message: a part of a file's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    file: &'a [u8],
    start: usize,
    end: usize,
}

/// What a field holds.
#[derive(Clone)]
pub(crate) enum Field<'a> {
    /// A whole number or an enumeration.
    Varint(u64),
    /// Four bytes: a float.
    Fixed32(u32),
    /// Eight bytes: a double.
    Fixed64(u64),
    /// Bytes, a text, a message or packed numbers.
    Bytes(Message<'a>),
}

impl<'a> Message<'a> {
    /// The message that a whole file is.
    pub(crate) fn new(file: &'a [u8]) -> Message<'a> {
        Message { file, start: 0, end: file.len() }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        &self.file[self.start..self.end]
    }

    /// Where it lies in the file.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The text that it is.
    pub(crate) fn text(&self) -> Result<String, OnnxError> {
        let text = std::str::from_utf8(self.bytes()).map_err(|_| damaged("a name is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// Calls `take` with the number of each field and what it holds.
    pub(crate) fn fields(
        self,
        mut take: impl FnMut(u64, Field<'a>) -> Result<(), OnnxError>,
    ) -> Result<(), OnnxError> {
        self.fields_from(|_, number, field| take(number, field))
    }

    /// Calls `take` with where each field begins, its number and what it holds.
    pub(crate) fn fields_from(
        self,
        mut take: impl FnMut(usize, u64, Field<'a>) -> Result<(), OnnxError>,
    ) -> Result<(), OnnxError> {
        let mut rest = self;
        while rest.start < rest.end {
            let start = rest.start;
            let key = rest.varint()?;
            let field = match key & 7 {
                0 => Field::Varint(rest.varint()?),
                1 => Field::Fixed64(u64::from_le_bytes(rest.array()?)),
                2 => {
                    let len = usize::try_from(rest.varint()?).unwrap_or(usize::MAX);
                    Field::Bytes(rest.take(len)?)
                }
                5 => Field::Fixed32(u32::from_le_bytes(rest.array()?)),
                kind => return Err(damaged(format!("a field of the unknown kind {kind}"))),
            };
            take(start, key >> 3, field)?;
        }
        Ok(())
    }

    /// All varints of a packed field.
    pub(crate) fn varints(self) -> Result<Vec<u64>, OnnxError> {
        let mut rest = self;
        let mut all = Vec::new();
        while rest.start < rest.end {
            all.push(rest.varint()?);
        }
        Ok(all)
    }

    fn varint(&mut self) -> Result<u64, OnnxError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(damaged("a number of more than 64 bits"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], OnnxError> {
        let bytes = self.take(N)?.bytes();
        Ok(bytes.try_into().expect("as many as were taken"))
    }

    fn take(&mut self, len: usize) -> Result<Message<'a>, OnnxError> {
        if len > self.end - self.start {
            return Err(damaged(format!(
                "a field of {len} bytes at byte {}, where {} are left",
                self.start,
                self.end - self.start
            )));
        }
        let start = self.start;
        self.start += len;
        Ok(Message { start, end: self.start, ..*self })
    }
}

impl<'a> Field<'a> {
    /// The number that it holds.
    pub(crate) fn number(&self) -> Result<i64, OnnxError> {
        match self {
            Field::Varint(value) => Ok(*value as i64),
            _ => Err(damaged("a field holds no number where one belongs")),
        }
    }

    /// The float that it holds.
    pub(crate) fn float(&self) -> Result<f32, OnnxError> {
        match self {
            Field::Fixed32(bits) => Ok(f32::from_bits(*bits)),
            _ => Err(damaged("a field holds no float where one belongs")),
        }
    }

    /// The message or the bytes that it holds.
    pub(crate) fn message(&self) -> Result<Message<'a>, OnnxError> {
        match self {
            Field::Bytes(message) => Ok(*message),
            _ => Err(damaged("a field holds no message where one belongs")),
        }
    }

    /// The text that it holds.
    pub(crate) fn text(&self) -> Result<String, OnnxError> {
        self.message()?.text()
    }

    /// The numbers that it holds: one, or several packed.
    pub(crate) fn numbers(&self) -> Result<Vec<i64>, OnnxError> {
        match self {
            Field::Bytes(message) => {
                Ok(message.varints()?.into_iter().map(|value| value as i64).collect())
            }
            field => Ok(vec![field.number()?]),
        }
    }

    /// The floats that it holds: one, or several packed.
    pub(crate) fn floats(&self) -> Result<Vec<f32>, OnnxError> {
        match self {
            Field::Bytes(message) => {
                let (words, rest) = message.bytes().as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(damaged("packed floats that are no multiple of four bytes"));
                }
                Ok(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
            }
            field => Ok(vec![field.float()?]),
        }
    }
}

/// The error for bytes that are no ONNX file.
pub(crate) fn damaged(why: impl Into<String>) -> OnnxError {
    OnnxError::Damaged { why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_with_their_places() {
        let file = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1D, 0, 0, 0x80, 0x3F];
        let mut seen = Vec::new();
        Message::new(&file)
            .fields(|number, field| {
                seen.push(match (number, field) {
                    (1, field) => field.number()?.to_string(),
                    (2, field) => format!("{} at {:?}", field.text()?, field.message()?.range()),
                    (_, field) => field.float()?.to_string(),
                });
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, ["150", "hi at 5..7", "1"]);
    }

    #[test]
    fn damage_is_an_error() {
        for file in [&[0x08][..], &[0x12, 0x05, 1], &[0x0B], &[0xFF; 12], &[0x0D, 1, 2]] {
            assert!(Message::new(file).fields(|_, _| Ok(())).is_err(), "{file:?}");
        }
    }
}
