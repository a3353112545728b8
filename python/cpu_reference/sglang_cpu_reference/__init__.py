"""What SGLang's CPU engine needs changed to run on an x86 CPU without AMX."""
