//! Scripts on images that no call of the file system makes.

/// On [`with_shared_attributes`](ext2::Ext2System::with_shared_attributes): the files are removed, or one of them gets
/// attributes of its own before.
pub const SHARED: [&str; 3] = [
    "unlink a\nunlink b\n",
    "unlink b\nunlink a\n",
    "setxattr a user.k 20 3 set\nunlink b\n",
];

/// On [`with_block_past_end`](ext2::Ext2System::with_block_past_end): the directory grows by a name.
pub fn past_end() -> String {
    format!("link f D/{}\n", "n".repeat(250))
}
