//! GGUF files as data, by ggml's own reader and writer.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};

use llama_cpp_sys_2 as sys;

use super::model::c_path;

/// A file in memory: its metadata and its tensors.
pub(crate) struct Source {
    raw: NonNull<sys::gguf_context>,
    tensors: NonNull<sys::ggml_context>,
}

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: both came from `gguf_init_from_file` and are not used again.
        unsafe { sys::gguf_free(self.raw.as_ptr()) };
        // SAFETY: as above.
        unsafe { sys::ggml_free(self.tensors.as_ptr()) };
    }
}

impl Source {
    /// Reads a file; none if it is damaged.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let path = c_path(path).ok()?;
        let mut tensors = ptr::null_mut();
        let params = sys::gguf_init_params { no_alloc: false, ctx: &raw mut tensors };
        // SAFETY: `path` is a C string, and `tensors` is written to.
        let raw = unsafe { sys::gguf_init_from_file(path.as_ptr(), params) };
        Some(Self { raw: NonNull::new(raw)?, tensors: NonNull::new(tensors)? })
    }

    /// The strings of an array; none if there is no such key.
    pub(crate) fn strings(&self, key: &str) -> Option<Vec<CString>> {
        let (id, count) = self.array(key, sys::GGUF_TYPE_STRING)?;
        let string = |index: usize| {
            // SAFETY: the array has strings, and `index` is within it.
            let string = unsafe { sys::gguf_get_arr_str(self.raw.as_ptr(), id, index) };
            // SAFETY: ggml gives a C string that lives as long as the file.
            unsafe { CStr::from_ptr(string) }.to_owned()
        };
        Some((0..count).map(string).collect())
    }

    /// The numbers of an array of `i32`.
    pub(crate) fn integers(&self, key: &str) -> Option<Vec<i32>> {
        let (id, count) = self.array(key, sys::GGUF_TYPE_INT32)?;
        // SAFETY: the array is of numbers.
        let data = unsafe { sys::gguf_get_arr_data(self.raw.as_ptr(), id) };
        // SAFETY: it has `count` numbers of this type, which live as long as the file.
        Some(unsafe { std::slice::from_raw_parts(data.cast(), count) }.to_vec())
    }

    /// The numbers of an array of `f32`.
    pub(crate) fn floats(&self, key: &str) -> Option<Vec<f32>> {
        let (id, count) = self.array(key, sys::GGUF_TYPE_FLOAT32)?;
        // SAFETY: the array is of numbers.
        let data = unsafe { sys::gguf_get_arr_data(self.raw.as_ptr(), id) };
        // SAFETY: it has `count` numbers of this type, which live as long as the file.
        Some(unsafe { std::slice::from_raw_parts(data.cast(), count) }.to_vec())
    }

    /// A list of yes and no.
    pub(crate) fn booleans(&self, key: &str) -> Option<Vec<bool>> {
        let (id, count) = self.array(key, sys::GGUF_TYPE_BOOL)?;
        // SAFETY: the value is an array of one byte each.
        let data = unsafe { sys::gguf_get_arr_data(self.raw.as_ptr(), id) };
        // SAFETY: ggml holds `count` bytes there as long as the file lives.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), count) };
        Some(bytes.iter().map(|&byte| byte != 0).collect())
    }

    /// A number that is an `f32`.
    pub(crate) fn float(&self, key: &str) -> Option<f32> {
        let id = self.find(key)?;
        // SAFETY: `id` is a key of the file.
        let kind = unsafe { sys::gguf_get_kv_type(self.raw.as_ptr(), id) };
        // SAFETY: the value is of this type.
        (kind == sys::GGUF_TYPE_FLOAT32)
            .then(|| unsafe { sys::gguf_get_val_f32(self.raw.as_ptr(), id) })
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        let id = self.find(key)?;
        // SAFETY: `id` is a key of the file.
        if unsafe { sys::gguf_get_kv_type(self.raw.as_ptr(), id) } != sys::GGUF_TYPE_STRING {
            return None;
        }
        // SAFETY: the value is of this type.
        let text = unsafe { sys::gguf_get_val_str(self.raw.as_ptr(), id) };
        // SAFETY: ggml gives a C string that lives as long as the file.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// The names of all tensors, in the file's order.
    pub(crate) fn tensor_names(&self) -> Vec<String> {
        // SAFETY: the file is live.
        let count = unsafe { sys::gguf_get_n_tensors(self.raw.as_ptr()) };
        let name = |number| {
            // SAFETY: `number` is below the count.
            let name = unsafe { sys::gguf_get_tensor_name(self.raw.as_ptr(), number) };
            // SAFETY: ggml gives a C string that lives as long as the file.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        (0..count).map(name).collect()
    }

    fn find_tensor(&self, name: &str) -> Option<&sys::ggml_tensor> {
        let name = CString::new(name).ok()?;
        // SAFETY: the tensors are live and `name` a C string.
        let tensor = unsafe { sys::ggml_get_tensor(self.tensors.as_ptr(), name.as_ptr()) };
        // SAFETY: the tensor is live while the source is, and never written to.
        NonNull::new(tensor).map(|tensor| unsafe { tensor.as_ref() })
    }

    /// The sizes of a tensor, the slowest first; none if there is no such tensor.
    pub(crate) fn tensor_sizes(&self, name: &str) -> Option<Vec<usize>> {
        let tensor = self.find_tensor(name)?;
        // SAFETY: the tensor is live.
        let dimensions = unsafe { sys::ggml_n_dims(tensor) };
        let sizes = tensor.ne.iter().take(usize::try_from(dimensions).ok()?).rev();
        sizes.map(|&size| usize::try_from(size).ok()).collect()
    }

    /// The same with its numbers; none also if its type has none.
    pub(crate) fn tensor(&self, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
        let (from, sizes) = (self.find_tensor(name)?, self.tensor_sizes(name)?);
        let count: usize = sizes.iter().product();
        let mut values = vec![0.0_f32; count];
        if from.type_ == sys::GGML_TYPE_F32 {
            // SAFETY: a tensor of a file is contiguous and has as many numbers as its sizes say; the
            // vector is another piece of memory.
            unsafe {
                ptr::copy_nonoverlapping(from.data.cast::<f32>(), values.as_mut_ptr(), count)
            };
            return Some((sizes, values));
        }
        // SAFETY: the type came from ggml, which has traits for each.
        let traits = NonNull::new(unsafe { sys::ggml_get_type_traits(from.type_) }.cast_mut())?;
        // SAFETY: ggml's table is never written to and lives as long as the program.
        let to_float = unsafe { traits.as_ref() }.to_float?;
        let count = i64::try_from(count).ok()?;
        // SAFETY: the tensor has `count` numbers of this type, in whole blocks as ggml has checked, and
        // the vector has room for as many.
        unsafe { to_float(from.data, values.as_mut_ptr(), count) };
        Some((sizes, values))
    }

    /// A number that is a `u32`.
    pub(crate) fn number(&self, key: &str) -> Option<u32> {
        let id = self.find(key)?;
        // SAFETY: `id` is a key of the file.
        let kind = unsafe { sys::gguf_get_kv_type(self.raw.as_ptr(), id) };
        // SAFETY: the value is of this type.
        (kind == sys::GGUF_TYPE_UINT32)
            .then(|| unsafe { sys::gguf_get_val_u32(self.raw.as_ptr(), id) })
    }

    /// All keys.
    pub(crate) fn keys(&self) -> Vec<String> {
        // SAFETY: the file is live.
        let count = unsafe { sys::gguf_get_n_kv(self.raw.as_ptr()) };
        let key = |id| {
            // SAFETY: `id` is below the count.
            let key = unsafe { sys::gguf_get_key(self.raw.as_ptr(), id) };
            // SAFETY: ggml gives a C string that lives as long as the file.
            unsafe { CStr::from_ptr(key) }.to_string_lossy().into_owned()
        };
        (0..count).map(key).collect()
    }

    fn find(&self, key: &str) -> Option<i64> {
        let key = CString::new(key).ok()?;
        // SAFETY: the file is live and `key` a C string.
        let id = unsafe { sys::gguf_find_key(self.raw.as_ptr(), key.as_ptr()) };
        (id >= 0).then_some(id)
    }

    /// An array of this type, and its length.
    fn array(&self, key: &str, kind: sys::gguf_type) -> Option<(i64, usize)> {
        let id = self.find(key)?;
        // SAFETY: `id` is a key of the file.
        if unsafe { sys::gguf_get_kv_type(self.raw.as_ptr(), id) } != sys::GGUF_TYPE_ARRAY {
            return None;
        }
        // SAFETY: the value is an array.
        let is = unsafe { sys::gguf_get_arr_type(self.raw.as_ptr(), id) };
        // SAFETY: as above.
        let count = unsafe { sys::gguf_get_arr_n(self.raw.as_ptr(), id) };
        (is == kind).then_some((id, count))
    }
}

/// A file to be written: the metadata of another, changed, and its tensors.
pub(crate) struct Sink<'a> {
    source: &'a Source,
    raw: NonNull<sys::gguf_context>,
    /// The tensors that differ.
    changed: Vec<NonNull<sys::ggml_context>>,
}

impl Drop for Sink<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from `gguf_init_empty` and is not used again.
        unsafe { sys::gguf_free(self.raw.as_ptr()) };
        for tensors in &self.changed {
            // SAFETY: as above, from `ggml_init`.
            unsafe { sys::ggml_free(tensors.as_ptr()) };
        }
    }
}

impl<'a> Sink<'a> {
    /// Begins with all metadata of a file.
    pub(crate) fn like(source: &'a Source) -> Self {
        // SAFETY: takes nothing.
        let raw = NonNull::new(unsafe { sys::gguf_init_empty() }).expect("it takes little memory");
        // SAFETY: both are live.
        unsafe { sys::gguf_set_kv(raw.as_ptr(), source.raw.as_ptr()) };
        Self { source, raw, changed: Vec::new() }
    }

    pub(crate) fn set_strings(&mut self, key: &str, strings: &[CString]) {
        let key = c_key(key);
        let mut pointers: Vec<*const c_char> = strings.iter().map(|it| it.as_ptr()).collect();
        let (data, count) = (pointers.as_mut_ptr(), pointers.len());
        // SAFETY: `data` has `count` C strings; ggml copies them.
        unsafe { sys::gguf_set_arr_str(self.raw.as_ptr(), key.as_ptr(), data, count) };
    }

    pub(crate) fn set_integers(&mut self, key: &str, numbers: &[i32]) {
        self.set_array(key, sys::GGUF_TYPE_INT32, numbers.as_ptr().cast(), numbers.len());
    }

    pub(crate) fn set_floats(&mut self, key: &str, numbers: &[f32]) {
        self.set_array(key, sys::GGUF_TYPE_FLOAT32, numbers.as_ptr().cast(), numbers.len());
    }

    pub(crate) fn set_booleans(&mut self, key: &str, values: &[bool]) {
        self.set_array(key, sys::GGUF_TYPE_BOOL, values.as_ptr().cast(), values.len());
    }

    pub(crate) fn set_number(&mut self, key: &str, number: u32) {
        let key = c_key(key);
        // SAFETY: the file is live and `key` a C string.
        unsafe { sys::gguf_set_val_u32(self.raw.as_ptr(), key.as_ptr(), number) };
    }

    pub(crate) fn set_float(&mut self, key: &str, number: f32) {
        let key = c_key(key);
        // SAFETY: the file is live and `key` a C string.
        unsafe { sys::gguf_set_val_f32(self.raw.as_ptr(), key.as_ptr(), number) };
    }

    pub(crate) fn remove(&mut self, key: &str) {
        let key = c_key(key);
        // SAFETY: the file is live and `key` a C string.
        unsafe { sys::gguf_remove_key(self.raw.as_ptr(), key.as_ptr()) };
    }

    pub(crate) fn set_text(&mut self, key: &str, text: &str) {
        let (key, text) = (c_key(key), c_key(text));
        // SAFETY: the file is live and both are C strings, which ggml copies.
        unsafe { sys::gguf_set_val_str(self.raw.as_ptr(), key.as_ptr(), text.as_ptr()) };
    }

    /// Adds a tensor of these sizes, the slowest first, as `f32`.
    ///
    /// # Panics
    /// If there are more than four sizes, or another number of values than they say.
    pub(crate) fn add_floats(&mut self, name: &str, sizes: &[usize], values: &[f32]) {
        self.add(name, sizes, (sys::GGML_TYPE_F32, values));
    }

    /// The same as `i64`.
    ///
    /// # Panics
    /// As above.
    pub(crate) fn add_integers(&mut self, name: &str, sizes: &[usize], values: &[i64]) {
        self.add(name, sizes, (sys::GGML_TYPE_I64, values));
    }

    /// Adds a tensor of a type that keeps each number as a `T`.
    fn add<T: Copy>(&mut self, name: &str, sizes: &[usize], of: (sys::ggml_type, &[T])) {
        let (kind, values) = of;
        // SAFETY: the type is one of ggml's, which only looks it up.
        let number_len = unsafe { sys::ggml_type_size(kind) };
        assert_eq!(number_len, size_of::<T>(), "the type keeps numbers as they are");
        assert!(sizes.len() <= 4, "ggml has at most four dimensions");
        assert_eq!(
            sizes.iter().product::<usize>(),
            values.len(),
            "as many values as the sizes say"
        );
        let ne: Vec<i64> = sizes.iter().rev().map(|&size| size.cast_signed() as i64).collect();
        // SAFETY: takes nothing and returns a number.
        let overhead = unsafe { sys::ggml_tensor_overhead() };
        let params = sys::ggml_init_params {
            mem_size: size_of_val(values) + 2 * overhead,
            mem_buffer: ptr::null_mut(),
            no_alloc: false,
        };
        // SAFETY: the parameters are plain numbers.
        let context = unsafe { sys::ggml_init(params) };
        let context = NonNull::new(context).expect("there is memory for as much again");
        self.changed.push(context);
        let dimensions = i32::try_from(ne.len()).expect("at most four");
        // SAFETY: the context is live and has room for the tensor; `ne` has that many sizes.
        let tensor =
            unsafe { sys::ggml_new_tensor(context.as_ptr(), kind, dimensions, ne.as_ptr()) };
        let tensor = NonNull::new(tensor).expect("there is room for it");
        let name = c_key(name);
        // SAFETY: the tensor is live and `name` a C string, which ggml copies.
        unsafe { sys::ggml_set_name(tensor.as_ptr(), name.as_ptr()) };
        // SAFETY: the tensor is live.
        let data = unsafe { tensor.as_ref() }.data.cast::<T>();
        // SAFETY: the tensor has room for as many values, in memory of its own.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), data, values.len()) };
        // SAFETY: both are live; the tensor is until the file is written, as `self` holds it.
        unsafe { sys::gguf_add_tensor(self.raw.as_ptr(), tensor.as_ptr()) };
    }

    /// Takes over all metadata of another file.
    pub(crate) fn adopt(&mut self, other: &Sink<'_>) {
        // SAFETY: both are live.
        unsafe { sys::gguf_set_kv(self.raw.as_ptr(), other.raw.as_ptr()) };
    }

    /// Adds all tensors of the source but those that are named.
    pub(crate) fn add_tensors(&mut self, without: &[&str]) {
        let names = self.source.tensor_names();
        for name in names.iter().filter(|name| !without.contains(&name.as_str())) {
            if let Some(tensor) = self.source.find_tensor(name) {
                // SAFETY: both are live; the tensor is until the file is written, as the source holds it.
                unsafe { sys::gguf_add_tensor(self.raw.as_ptr(), tensor) };
            }
        }
    }

    /// Adds some rows of a tensor of the source, if there is such a tensor.
    pub(crate) fn add_rows(&mut self, name: &str, rows: &[usize]) {
        let source = self.source;
        if let Some(tensor) = source.find_tensor(name) {
            let some = self.some_rows(tensor, &c_key(name), rows);
            // SAFETY: both are live; the tensor is until the file is written, as `self` holds it.
            unsafe { sys::gguf_add_tensor(self.raw.as_ptr(), some.as_ptr()) };
        }
    }

    /// A tensor with some rows of another.
    fn some_rows(
        &mut self,
        from: &sys::ggml_tensor,
        name: &CStr,
        rows: &[usize],
    ) -> NonNull<sys::ggml_tensor> {
        let row_len = from.nb[1];
        // SAFETY: takes nothing and returns a number.
        let overhead = unsafe { sys::ggml_tensor_overhead() };
        let params = sys::ggml_init_params {
            mem_size: rows.len() * row_len + 2 * overhead,
            mem_buffer: ptr::null_mut(),
            no_alloc: false,
        };
        // SAFETY: the parameters are plain numbers.
        let context = unsafe { sys::ggml_init(params) };
        let context = NonNull::new(context).expect("there is memory for a part of the file");
        self.changed.push(context);
        let count = i64::try_from(rows.len()).expect("a vocabulary fits");
        // SAFETY: the context is live and has room for the tensor.
        let to =
            unsafe { sys::ggml_new_tensor_2d(context.as_ptr(), from.type_, from.ne[0], count) };
        let to = NonNull::new(to).expect("there is room for it");
        // SAFETY: the tensor is live and `name` a C string, which ggml copies.
        unsafe { sys::ggml_set_name(to.as_ptr(), name.as_ptr()) };
        // SAFETY: the tensor is live.
        let data = unsafe { to.as_ref() }.data.cast::<u8>();
        let last = usize::try_from(from.ne[1]).unwrap_or(0);
        for (index, &row) in rows.iter().enumerate() {
            assert!(row < last, "a row for each token");
            let (source, target) = (
                from.data.cast::<u8>().wrapping_add(row * row_len),
                data.wrapping_add(index * row_len),
            );
            // SAFETY: `row` is within one tensor and `index` within the other, whose rows are as long.
            unsafe { ptr::copy_nonoverlapping(source, target, row_len) };
        }
        to
    }

    /// Writes the file; whether that succeeded.
    pub(crate) fn write(&self, path: &Path) -> bool {
        let Ok(path) = c_path(path) else { return false };
        // SAFETY: the file and all its tensors are live, and `path` is a C string.
        unsafe { sys::gguf_write_to_file(self.raw.as_ptr(), path.as_ptr(), false) }
    }

    fn set_array(&mut self, key: &str, kind: sys::gguf_type, data: *const c_void, count: usize) {
        let key = c_key(key);
        // SAFETY: `data` has `count` numbers of this type; ggml copies them.
        unsafe { sys::gguf_set_arr_data(self.raw.as_ptr(), key.as_ptr(), kind, data, count) };
    }
}

fn c_key(key: &str) -> CString {
    CString::new(key).expect("a key has no zero in it")
}
