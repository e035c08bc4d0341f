// says: error[E0614]
//! Only a transaction can access persistent data.

fn count(of: persist::Ptr<u64>) -> u64 {
    *of
}

fn main() {}
