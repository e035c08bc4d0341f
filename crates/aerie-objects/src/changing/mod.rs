//! The changes of objects that a transaction can make.

mod bucket;
mod collection;
mod object;
mod tree;
