//! A type map: typed values that filters share.

use std::any::{Any, TypeId};

use smallvec::SmallVec;

use crate::{AnswerProgress, AnswerUsage, Charge, Forward, Principal};

/// A small map from a type to a value of the type.
///
/// Types that nearly every completion uses often have a dedicated field. The compiler resolves the field from the type, without a search or
/// an allocation. The few other types are in a short array, in which a scan is faster than hashing.
#[derive(Default)]
pub(crate) struct Slots {
    principal: Option<Principal>,
    forward: Option<Forward>,
    progress: Option<AnswerProgress>,
    usage: Option<AnswerUsage>,
    charge: Option<Charge>,
    others: SmallVec<[(TypeId, Box<dyn Any + Send + Sync>); 6]>,
}

/// The slot, if the slot is for values of type `T`. Resolved at compile time.
#[inline(always)]
fn place<A: 'static, T: 'static>(place: &Option<A>) -> Option<&Option<T>> {
    (place as &dyn Any).downcast_ref()
}

/// [`place`], mutable.
#[inline(always)]
fn place_mut<A: 'static, T: 'static>(place: &mut Option<A>) -> Option<&mut Option<T>> {
    (place as &mut dyn Any).downcast_mut()
}

impl Slots {
    #[inline]
    pub(crate) fn put<T: Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        match self.field_mut() {
            Some(field) => field.replace(value),
            None => self.put_among_others(value),
        }
    }

    #[inline]
    pub(crate) fn put_boxed<T: Send + Sync + 'static>(&mut self, value: Box<T>) -> Option<Box<T>> {
        match self.field_mut() {
            Some(field) => field.replace(*value).map(Box::new),
            None => {
                let former = self.take_from_others();
                self.others.push((TypeId::of::<T>(), value));
                former
            }
        }
    }

    #[inline]
    pub(crate) fn find<T: 'static>(&self) -> Option<&T> {
        match self.field() {
            Some(field) => field.as_ref(),
            None => self.find_among_others(),
        }
    }

    #[inline]
    pub(crate) fn find_mut<T: 'static>(&mut self) -> Option<&mut T> {
        let at = match self.field::<T>() {
            Some(_) => return self.field_mut().and_then(Option::as_mut),
            None => self.place_among_others::<T>()?,
        };
        self.others[at].1.downcast_mut()
    }

    #[inline]
    pub(crate) fn take<T: 'static>(&mut self) -> Option<T> {
        match self.field_mut() {
            Some(field) => field.take(),
            None => self.take_from_others().map(|value| *value),
        }
    }

    #[inline]
    pub(crate) fn take_boxed<T: 'static>(&mut self) -> Option<Box<T>> {
        match self.field_mut() {
            Some(field) => field.take().map(Box::new),
            None => self.take_from_others(),
        }
    }

    /// The field for values of type `T`, if the type has a field.
    #[inline(always)]
    fn field<T: 'static>(&self) -> Option<&Option<T>> {
        place(&self.principal)
            .or_else(|| place(&self.forward))
            .or_else(|| place(&self.progress))
            .or_else(|| place(&self.usage))
            .or_else(|| place(&self.charge))
    }

    /// [`Slots::field`], mutable.
    #[inline(always)]
    fn field_mut<T: 'static>(&mut self) -> Option<&mut Option<T>> {
        place_mut(&mut self.principal)
            .or_else(|| place_mut(&mut self.forward))
            .or_else(|| place_mut(&mut self.progress))
            .or_else(|| place_mut(&mut self.usage))
            .or_else(|| place_mut(&mut self.charge))
    }

    fn place_among_others<T: 'static>(&self) -> Option<usize> {
        let key = TypeId::of::<T>();
        self.others.iter().position(|(id, _)| *id == key)
    }

    fn find_among_others<T: 'static>(&self) -> Option<&T> {
        let at = self.place_among_others::<T>()?;
        self.others[at].1.downcast_ref()
    }

    fn put_among_others<T: Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        match self.place_among_others::<T>() {
            None => {
                self.others.push((TypeId::of::<T>(), Box::new(value)));
                None
            }
            Some(at) => {
                let slot = self.others[at].1.downcast_mut();
                slot.map(|slot| std::mem::replace(slot, value))
            }
        }
    }

    fn take_from_others<T: 'static>(&mut self) -> Option<Box<T>> {
        let at = self.place_among_others::<T>()?;
        let (_, value) = self.others.swap_remove(at);
        value.downcast().ok()
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
        assert_eq!(slots.take_boxed(), Some(Box::new(2u32)));
        assert_eq!(slots.find::<u32>(), None);
        assert_eq!(slots.put_boxed(Box::new(3u32)), None);
        assert_eq!(slots.put_boxed(Box::new(4u32)), Some(Box::new(3)));
        assert_eq!(slots.take::<u32>(), Some(4));
        assert_eq!(slots.find::<u32>(), None);
    }

    #[test]
    fn a_type_with_a_field_of_its_own_is_like_any_other() {
        let progress = |finished| AnswerProgress {
            finished,
            ..AnswerProgress::default()
        };
        let mut slots = Slots::default();
        assert!(slots.find::<AnswerProgress>().is_none());
        assert!(slots.put(progress(false)).is_none());
        assert!(slots.others.is_empty(), "it is not stored among the others");
        slots.put(1u32);
        if let Some(found) = slots.find_mut::<AnswerProgress>() {
            found.client_gone = true;
        }
        let earlier = slots.put(progress(true)).expect("the earlier value");
        assert!(earlier.client_gone && !earlier.finished);
        assert!(
            slots
                .find::<AnswerProgress>()
                .is_some_and(|now| now.finished)
        );
        assert!(slots.put_boxed(Box::new(progress(false))).is_some());
        assert!(slots.take_boxed::<AnswerProgress>().is_some());
        assert!(slots.find::<AnswerProgress>().is_none());
        assert_eq!(slots.find::<u32>(), Some(&1));
    }
}
