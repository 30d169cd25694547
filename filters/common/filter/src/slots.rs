//! Typed values that filters leave for each other.

use std::any::{Any, TypeId};

use smallvec::SmallVec;

/// A small map from a type to one value of it.
///
/// A request carries fewer than ten of them, so a scan over a short array beats hashing.
#[derive(Default)]
pub(crate) struct Slots {
    values: SmallVec<[(TypeId, Box<dyn Any + Send + Sync>); 10]>,
}

impl Slots {
    pub(crate) fn put<T: Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        match self.find_mut::<T>() {
            Some(slot) => Some(std::mem::replace(slot, value)),
            None => {
                self.values.push((TypeId::of::<T>(), Box::new(value)));
                None
            }
        }
    }

    pub(crate) fn find<T: 'static>(&self) -> Option<&T> {
        let key = TypeId::of::<T>();
        self.values
            .iter()
            .find(|(id, _)| *id == key)
            .and_then(|(_, value)| value.downcast_ref())
    }

    pub(crate) fn find_mut<T: 'static>(&mut self) -> Option<&mut T> {
        let key = TypeId::of::<T>();
        self.values
            .iter_mut()
            .find(|(id, _)| *id == key)
            .and_then(|(_, value)| value.downcast_mut())
    }

    pub(crate) fn take<T: 'static>(&mut self) -> Option<T> {
        let key = TypeId::of::<T>();
        let at = self.values.iter().position(|(id, _)| *id == key)?;
        self.values
            .swap_remove(at)
            .1
            .downcast()
            .ok()
            .map(|value| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_one_value_of_each_type() {
        let mut slots = Slots::default();
        assert_eq!(slots.put(1u32), None);
        assert_eq!(slots.put("text"), None);
        assert_eq!(slots.put(2u32), Some(1), "the earlier value comes back");
        assert_eq!(slots.find::<u32>(), Some(&2));
        assert_eq!(slots.take::<&str>(), Some("text"));
        assert_eq!(slots.find::<&str>(), None);
    }
}
