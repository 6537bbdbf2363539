"""Users' own datasources and datasinks, and folders that become columns, under Ray's names."""

from hocket._base import missing as _missing
from hocket.data.sources.choosing import FileShuffleConfig as FileShuffleConfig
from hocket.data.sources.custom import Datasink as Datasink
from hocket.data.sources.custom import Datasource as Datasource
from hocket.data.sources.custom import ReadTask as ReadTask
from hocket.data.sources.custom import TaskContext as TaskContext
from hocket.data.sources.custom import WriteResult as WriteResult
from hocket.data.sources.naming import FilenameProvider as FilenameProvider
from hocket.data.sources.partitions import Partitioning as Partitioning
from hocket.data.sources.partitions import PartitionStyle as PartitionStyle
from hocket.data.sources.partitions import PathPartitionFilter as PathPartitionFilter
from hocket.data.sources.sinks import BlockBasedFileDatasink as BlockBasedFileDatasink
from hocket.data.sources.sinks import RowBasedFileDatasink as RowBasedFileDatasink
from hocket.data.sources.writing import SaveMode as SaveMode

_missing.explain(__name__)
