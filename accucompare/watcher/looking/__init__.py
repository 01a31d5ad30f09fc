"""What a watch looks at while a step runs."""

from accucompare.watcher.looking.extrema import Extrema as Extrema
from accucompare.watcher.looking.extrema import Meter as Meter
from accucompare.watcher.looking.extrema import data_of as data_of
from accucompare.watcher.looking.extrema import has_memory as has_memory
from accucompare.watcher.looking.extrema import is_small as is_small
from accucompare.watcher.looking.extrema import known as known
from accucompare.watcher.looking.extrema import look_now as look_now
from accucompare.watcher.looking.extrema import norm_now as norm_now
from accucompare.watcher.looking.extrema import sample_of as sample_of
from accucompare.watcher.looking.notes import Note as Note
from accucompare.watcher.looking.notes import Scope as Scope
from accucompare.watcher.looking.notes import WatchedCall as WatchedCall
from accucompare.watcher.looking.watcher import Watcher as Watcher
