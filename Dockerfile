# The demo in a container, without a GPU:  docker build -t embodied-rl . && mkdir -p runs && docker run --rm -v "$PWD/runs:/home/user/runs" embodied-rl
# The folder runs must belong to the user 1000.
FROM python:3.11-slim
RUN useradd --create-home --uid 1000 user
COPY . /source
# torch first and alone: its pin decides which build is taken. PyPI has the one for CUDA, of several gigabytes;
# --build-arg PIP_EXTRA_INDEX_URL=<PyTorch's package index for CPUs> takes that for CPUs.
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint /source/constraints.txt torch \
    && pip install --no-cache-dir --constraint /source/constraints.txt /source/sims/embodied_rl_robot '/source[lerobot,lora]' \
    && rm -rf /source
USER user
WORKDIR /home/user
ENV OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
ENTRYPOINT ["embodied-rl"]
CMD ["train", "experiment=demo"]
