"""The series: what each part of SGLang needs changed, one table for each concept."""

from sglang_cpu_reference.series.dflash import DFLASH
from sglang_cpu_reference.series.quantization import QUANTIZATION
from sglang_cpu_reference.series.runtime import RUNTIME
from sglang_cpu_reference.series.speculative import SPECULATIVE

SERIES = (*RUNTIME, *QUANTIZATION, *SPECULATIVE, *DFLASH)
