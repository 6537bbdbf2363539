"""Arrow: columns that are not plain numbers, their types, tables, and the files that Arrow reads.

A column of strings, lists, times or missing values is an Arrow array, because numpy could hold it only as Python
objects. Python objects are pickled one by one, while an Arrow array travels as a few buffers and is read in place. If
Arrow is not installed, such columns are numpy arrays of objects, which do the same more slowly. Only Arrow's own
functions (files, tables) need Arrow.
"""

from hocket.data.arrow.building import build_array as build_array
from hocket.data.arrow.building import convert as convert
from hocket.data.arrow.building import encode_categories as encode_categories
from hocket.data.arrow.building import find_categories as find_categories
from hocket.data.arrow.building import flatten as flatten
from hocket.data.arrow.building import get_optional_array as get_optional_array
from hocket.data.arrow.building import is_categorical as is_categorical
from hocket.data.arrow.building import join as join
from hocket.data.arrow.building import merge_categories as merge_categories
from hocket.data.arrow.building import narrow as narrow
from hocket.data.arrow.building import recast as recast
from hocket.data.arrow.building import refine_arrays as refine_arrays
from hocket.data.arrow.forms import build_missing as build_missing
from hocket.data.arrow.forms import build_table as build_table
from hocket.data.arrow.forms import check_texts as check_texts
from hocket.data.arrow.forms import compact as compact
from hocket.data.arrow.forms import find_changes as find_changes
from hocket.data.arrow.forms import hold as hold
from hocket.data.arrow.forms import read_column as read_column
from hocket.data.arrow.forms import read_table as read_table
from hocket.data.arrow.forms import to_numpy as to_numpy
from hocket.data.arrow.forms import to_series as to_series
from hocket.data.arrow.kinds import Array as Array
from hocket.data.arrow.kinds import convert_times as convert_times
from hocket.data.arrow.kinds import decode_dictionary as decode_dictionary
from hocket.data.arrow.kinds import find_type as find_type
from hocket.data.arrow.kinds import fit_times as fit_times
from hocket.data.arrow.kinds import get_optional as get_optional
from hocket.data.arrow.kinds import is_bytes as is_bytes
from hocket.data.arrow.kinds import is_tensor as is_tensor
from hocket.data.arrow.kinds import is_text as is_text
from hocket.data.arrow.kinds import load as load
from hocket.data.arrow.kinds import rebuild_type as rebuild_type
from hocket.data.arrow.kinds import unify as unify
from hocket.data.arrow.tensors import list_tensors as list_tensors
from hocket.data.arrow.tensors import nest as nest
from hocket.data.arrow.tensors import pack_arrays as pack_arrays
